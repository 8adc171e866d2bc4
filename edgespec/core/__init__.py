"""The pure heart: rounds, verification, sampling, control. numpy only; no clock, files or OS of its own."""
