module github.com/holdfast-io/holdfast/backend/mysqllock

go 1.26

require github.com/holdfast-io/holdfast v0.0.0

require github.com/go-sql-driver/mysql v1.10.1

require filippo.io/edwards25519 v1.2.0 // indirect

replace github.com/holdfast-io/holdfast => ../..
