module github.com/holdfast-io/holdfast/backend/redislock

go 1.26.0

require github.com/holdfast-io/holdfast v0.0.0

require github.com/redis/rueidis v1.0.79

require (
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/holdfast-io/holdfast => ../..
