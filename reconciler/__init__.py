"""Who finds out? The verdict on a look-up, and the sweeps that bring uncertain actions to it."""
