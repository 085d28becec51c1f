"""Training the learned drafter: texts of the target's own, taps, the head, its evaluation."""
