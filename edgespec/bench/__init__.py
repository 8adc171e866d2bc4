"""Workloads, runner and report of `edgespec bench`."""
