"""Doctor: checks of machine, services and home, and the conditions of status, each with its remedy."""
