package runner

// clockID is CLOCK_MONOTONIC, which package unix does not have for this system.
const clockID = 3
