"""What nodes of earlier versions have written and said, recorded, and that this version still understands it."""
