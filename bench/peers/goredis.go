package main

import (
	"errors"
	"net/url"

	"github.com/redis/go-redis/v9"
)

// goRedis is a client of go-redis on a URL of the bench, with the defaults of go-redis: more
// connections were slower when measured.
func goRedis(raw string) (*redis.Client, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the URL of Redis cannot be parsed") // the error may hold the password
	}
	u.RawQuery = "" // only our own client knows the parameters
	option, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errors.New("go-redis cannot parse the URL of Redis")
	}
	return redis.NewClient(option), nil
}
