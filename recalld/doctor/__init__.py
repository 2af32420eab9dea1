"""`recalld doctor`: what of this machine and this home is not as it should be, what to do, and what can be healed."""
