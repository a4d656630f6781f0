"""Measuring a server: launch it, send it real prompts, compare what comes back."""
