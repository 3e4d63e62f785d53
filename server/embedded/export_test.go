package embedded

// OpenHeld is Open of a node that does not run before the function that it returns is called.
func OpenHeld(cfg Config) (*Etcd, func(), error) { return open(cfg) }

// HasRecord reports whether the node has the record of a cluster.
func (e *Etcd) HasRecord() bool { return e.recorded() != nil }
