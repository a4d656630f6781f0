"""Draft checkpoints and models: reading, the DSpark backbone and heads, the demo pair. Imports no engine."""
