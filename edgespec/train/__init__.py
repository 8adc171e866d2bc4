"""Makes drafter packages: generates text with the target, fits a tiny model to it, and exports what it learned."""
