"""Exact enumeration of speculative decoding over small worlds: rational arithmetic, no sampling (docs/exactness.md)."""
