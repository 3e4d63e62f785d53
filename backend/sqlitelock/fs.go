package sqlitelock

// refusedFileSystem returns the name of the file system with that number (f_type of statfs, linux/magic.h and
// the projects' own sources) where a lock file may not be on it: more than one machine can mount it, or it stands
// for something unknown, so that its locks and its memory maps are not those of one kernel. An unknown number
// counts as a local one: new local file systems are many, and new cluster file systems are few.
func refusedFileSystem(number uint32) (string, bool) {
	shared := map[uint32]string{
		0x00006969: "nfs",
		0x0000517b: "smb",
		0xff534d42: "cifs",
		0xfe534d42: "smb2",
		0x01021997: "9p",
		0x5346414f: "afs",
		0x6b414653: "kafs",
		0x00c36400: "ceph",
		0x0bd00bd0: "lustre",
		0x73757245: "coda",
		0x0000564c: "ncp",
		0x01161970: "gfs2",
		0x7461636f: "ocfs2",
		0x47504653: "gpfs",
		0x19830326: "beegfs",
		0xaad7aaea: "panfs",
		0x20030528: "orangefs",
		0x013111a8: "ibrix",
		0xbeefdead: "snfs",
		0x61636673: "acfs",
		0xa501fcf5: "vxfs",
		0x786f4256: "vboxsf",
		0x7c7c6673: "prlfs",
		0xbacbacbc: "vmhgfs",
		0x65735546: "fuse", // sshfs, virtiofs, s3fs and many more: they cannot be distinguished
	}
	name, refused := shared[number]
	return name, refused
}
