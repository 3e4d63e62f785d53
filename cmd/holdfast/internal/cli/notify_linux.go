package cli

import "github.com/coreos/go-systemd/v22/daemon"

func sdNotify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
