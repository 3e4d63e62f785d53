-- A real shop should also have CHECK (stock >= 0) and UNIQUE (order_id). They are left out
-- here so that the tests show what the locks and the tokens protect.
CREATE TABLE IF NOT EXISTS product (
    id    bigint PRIMARY KEY,
    stock integer NOT NULL
);

CREATE TABLE IF NOT EXISTS orders (
    id       bigint PRIMARY KEY,
    product  bigint NOT NULL REFERENCES product,
    quantity integer NOT NULL CHECK (quantity > 0),
    status   text NOT NULL DEFAULT 'pending'
);

CREATE TABLE IF NOT EXISTS charge (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint NOT NULL REFERENCES orders,
    token    bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS reservation (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    product  bigint NOT NULL REFERENCES product,
    quantity integer NOT NULL CHECK (quantity > 0),
    request  text,
    token    bigint NOT NULL
);

CREATE INDEX IF NOT EXISTS reservation_request ON reservation (product, request);

-- The confirmations to send: see Mail.
CREATE TABLE IF NOT EXISTS mail (
    order_id bigint PRIMARY KEY REFERENCES orders,
    sent     boolean NOT NULL DEFAULT false
);

CREATE INDEX IF NOT EXISTS mail_unsent ON mail (order_id) WHERE NOT sent;
