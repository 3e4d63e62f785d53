package leasetest

// Explore visits all states of a model that can be reached from start, or as many as it takes to find one
// that is wrong. next calls its function with each state that follows from one, and with what is wrong
// there, or "". Explore returns the number of states, and what was wrong.
func Explore[S comparable](start S, next func(from S, to func(S, string))) (int, string) {
	seen := map[S]struct{}{start: {}}
	stack := []S{start}
	wrong := ""
	for len(stack) > 0 && wrong == "" {
		from := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		next(from, func(to S, why string) {
			if why != "" {
				wrong = why
			}
			if _, known := seen[to]; !known {
				seen[to] = struct{}{}
				stack = append(stack, to)
			}
		})
	}
	return len(seen), wrong
}
