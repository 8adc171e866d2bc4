"""The decoding loop and everything it decides with; numpy only, no clock, no files."""
