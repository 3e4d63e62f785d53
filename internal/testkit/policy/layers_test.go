package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// layer is a line of the picture in ARCHITECTURE.md: a name, and the folders of its packages as
// patterns of folderMatches. Lines that begin with a space continue the line before.
type layer struct {
	name     string
	packages []string
}

// layersOf reads the picture: the first block of code under the heading "Layers". The first layer
// is the top one.
func layersOf(page string) []layer {
	_, rest, _ := strings.Cut(page, "\n## Layers\n")
	_, rest, _ = strings.Cut(rest, "\n```\n")
	block, _, _ := strings.Cut(rest, "\n```")
	var layers []layer
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if line[0] != ' ' {
			layers = append(layers, layer{name: words[0]})
			words = words[1:]
		}
		if len(layers) == 0 {
			return nil
		}
		last := &layers[len(layers)-1]
		for _, word := range words {
			if word == "holdfast" {
				word = "." // the package of the root
			}
			last.packages = append(last.packages, word)
		}
	}
	return layers
}

// checkLayers checks that each package is in exactly one layer of the picture, that the picture has
// no other packages, and that imports of code that is no test only lead to lower layers. There are
// no exceptions within a layer: a package that others of its layer need belongs below it.
func checkLayers(m *moduleSources) []string {
	const page = "ARCHITECTURE.md"
	layers := layersOf(m.pages[page])
	if len(layers) == 0 {
		return []string{page + " has no picture of the layers"}
	}
	var faults []string
	place := make(map[string]int) // of a folder, from the top
	unused := make(map[string]bool)
	for i, l := range layers {
		for _, pattern := range l.packages {
			unused[pattern] = true
			for _, folder := range m.folders() {
				if !folderMatches(pattern, folder) {
					continue
				}
				delete(unused, pattern)
				if _, twice := place[folder]; twice {
					faults = append(faults, fmt.Sprintf("%s: %s is there twice", page, folder))
				}
				place[folder] = i
			}
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(unused)) {
		faults = append(faults, fmt.Sprintf("%s: there is no package %s", page, pattern))
	}
	for _, folder := range m.folders() {
		if _, ok := place[folder]; !ok {
			faults = append(faults, fmt.Sprintf("%s: %s is in no layer", page, folder))
		}
	}
	return append(faults, upward(m, layers, place)...)
}

// upward returns the imports that do not lead to a lower layer.
func upward(m *moduleSources, layers []layer, place map[string]int) []string {
	var faults []string
	for s := range m.code() {
		from, known := place[s.folder]
		for p, spec := range s.imports() {
			folder, ours := m.own(p)
			to, placed := place[folder]
			if ours && known && placed && to <= from {
				faults = append(faults, fmt.Sprintf("%s: %s (%s) imports %s (%s), which is not below it", m.at(spec), s.folder, layers[from].name, folder, layers[to].name))
			}
		}
	}
	slices.Sort(faults)
	return faults
}
