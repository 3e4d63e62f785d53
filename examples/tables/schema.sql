-- A real restaurant should also have an exclusion constraint on (mesa_id, the time). It is
-- left out here so that the tests show what the row locks protect.
CREATE TABLE IF NOT EXISTS mesa (
    id       bigint PRIMARY KEY,
    lugares  integer NOT NULL,
    reservas integer NOT NULL DEFAULT 0 -- the number of its reservations, which an update can lose
);

CREATE TABLE IF NOT EXISTS usuario (
    id   bigint PRIMARY KEY,
    nome text NOT NULL
);

CREATE TABLE IF NOT EXISTS reserva (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mesa_id    bigint NOT NULL REFERENCES mesa,
    usuario_id bigint NOT NULL REFERENCES usuario,
    inicio     timestamp NOT NULL, -- the restaurant's own time
    fim        timestamp NOT NULL
);

CREATE INDEX IF NOT EXISTS reserva_inicio ON reserva (mesa_id, inicio);
