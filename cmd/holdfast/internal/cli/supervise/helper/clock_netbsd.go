package helper

// monotonic is CLOCK_MONOTONIC, which package unix does not have for this system.
const monotonic = 3
