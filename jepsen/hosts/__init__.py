"""Hosts: where nodes run, and the faults that can be made there."""
