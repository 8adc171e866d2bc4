"""Models: catalogue, download, local store."""
