"""Status: the conditions that hold, and the sentences that people read about them."""
