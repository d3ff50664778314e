"""Fuzzing: whatever comes in on any port, or lies in any file, is at worst refused."""
