"""The tensor language: text or Python to tensor graphs."""
