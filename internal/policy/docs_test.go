package policy_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

func checkPackageDoc(m *moduleSources) []string {
	docs := make(map[string][]string)
	for s := range m.code() {
		if s.file.Doc != nil && strings.TrimSpace(s.file.Doc.Text()) != "" {
			docs[s.folder] = append(docs[s.folder], s.name)
		}
	}
	var faults []string
	for _, folder := range m.folders() {
		switch names := docs[folder]; len(names) {
		case 0:
			faults = append(faults, folder+": no file has a comment above its package clause")
		case 1:
		default:
			faults = append(faults, folder+": more than one file has a comment above its package clause: "+strings.Join(names, ", "))
		}
	}
	return faults
}

func checkDocComments(m *moduleSources) []string {
	var faults []string
	fault := func(n ast.Node, name string, docs ...*ast.CommentGroup) {
		if f := docFault(docs...); f != "" {
			faults = append(faults, fmt.Sprintf("%s: %s: %s", m.at(n), name, f))
		}
	}
	for s := range m.code() {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name, ok := exportedFunc(d); ok {
					fault(d, name, d.Doc)
				}
			case *ast.GenDecl:
				eachExported(d, fault)
			}
		}
	}
	return faults
}

// exportedFunc returns the name of a function or method that other packages can call.
func exportedFunc(f *ast.FuncDecl) (string, bool) {
	if !f.Name.IsExported() {
		return "", false
	}
	if f.Recv == nil {
		return f.Name.Name, true
	}
	recv := f.Recv.List[0].Type
	for {
		switch r := recv.(type) {
		case *ast.StarExpr:
			recv = r.X
		case *ast.IndexExpr:
			recv = r.X
		case *ast.IndexListExpr:
			recv = r.X
		case *ast.Ident:
			return r.Name + "." + f.Name.Name, r.IsExported()
		default:
			return "", false
		}
	}
}

// eachExported calls fault with the exported names of a declaration: types, methods of interfaces,
// constants and variables. In a group, the comment of the group suffices.
func eachExported(g *ast.GenDecl, fault func(n ast.Node, name string, docs ...*ast.CommentGroup)) {
	if g.Tok == token.IMPORT {
		return
	}
	for _, spec := range g.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			fault(s, s.Name.Name, s.Doc, g.Doc)
			if i, ok := s.Type.(*ast.InterfaceType); ok && documented(i) {
				eachMethod(s.Name.Name, i, fault)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() {
					fault(name, name.Name, s.Doc, g.Doc)
				}
			}
		}
	}
}

// documented reports whether any method of i has a comment. If none has, the comment of the type
// describes all of them.
func documented(i *ast.InterfaceType) bool {
	return slices.ContainsFunc(i.Methods.List, func(f *ast.Field) bool { return f.Doc != nil })
}

func eachMethod(of string, i *ast.InterfaceType, fault func(n ast.Node, name string, docs ...*ast.CommentGroup)) {
	for _, method := range i.Methods.List {
		for _, name := range method.Names {
			if name.IsExported() {
				fault(name, of+"."+name.Name, method.Doc)
			}
		}
	}
}

// docFault returns what is wrong with the first comment that exists.
func docFault(docs ...*ast.CommentGroup) string {
	for _, doc := range docs {
		if doc == nil {
			continue
		}
		text := strings.TrimRight(doc.Text(), " \n")
		if text == "" {
			continue
		}
		last := text[strings.LastIndexByte(text, '\n')+1:]
		if strings.HasPrefix(last, "\t") || strings.HasPrefix(last, " ") { // code, or a list
			return ""
		}
		if !strings.ContainsAny(last[len(last)-1:], ".!?") && !strings.HasSuffix(last, ".)") {
			return fmt.Sprintf("its comment ends with %q, not with a full stop", last)
		}
		return ""
	}
	return "it has no comment"
}
