"""Training a DSpark draft: target-generated text, features, loss, loop and evaluation. Imports no engine."""
