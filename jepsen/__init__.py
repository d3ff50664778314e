"""Jepsen: cuts a real cluster while clients work, heals it, drains it, and judges what came of it."""
