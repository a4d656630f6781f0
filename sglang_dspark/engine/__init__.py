"""The SGLang side: everything here imports the engine, nothing outside imports it."""
