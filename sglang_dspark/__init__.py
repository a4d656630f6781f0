"""DSpark speculative decoding for SGLang: a semi-autoregressive draft and a load-aware verification schedule."""

__version__ = "0.1.0"
