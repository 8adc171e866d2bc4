"""What the machine is and does: cores, memory, heat."""
