"""Everything SGLang needs to run on a machine without a GPU.

Kept free of imports: `bootstrap` must be importable before torch and SGLang are.
"""
