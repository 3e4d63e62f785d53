import assert from "node:assert";
import test from "node:test";
import { cases } from "./cases.js";
import * as state from "./state.js";

for (const [name, got, want] of cases(state)) test(name, () => assert.deepStrictEqual(got, want));
