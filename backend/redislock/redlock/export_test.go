package redlock

// Rights are the commands that a user needs.
var Rights = rights
