package k8slock

// OpenInPod is Open in a pod, whose service account is in the folder.
func OpenInPod(folder, host, port string) (*Backend, error) {
	c, err := inCluster(folder, host, port)
	if err != nil {
		return nil, err
	}
	return c.open(Config{})
}
