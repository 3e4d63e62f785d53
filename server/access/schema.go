package access

import _ "embed" // for the schema

//go:embed policy.schema.json
var schema []byte

// Schema returns the JSON schema (draft 2020-12) of the file of a policy, for editors and for checks
// before a policy is rolled out. It refuses nothing that Parse accepts, except values that YAML
// converts to text, such as a number in place of a name. It cannot check references between parts of
// the file: Parse does.
func Schema() []byte { return append([]byte(nil), schema...) }
