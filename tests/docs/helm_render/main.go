// Renders the templates of a chart with Go's template engine and sprig, which are what Helm renders them with. It is a
// stand-in where there is no helm: it knows include, toYaml, tpl-free charts and .Files.Get, and no hooks, no
// dependencies and no values schema. Reads {"Values": ..., "Release": ..., "Chart": ...} from standard input.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run main.go CHART < context.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type files struct{ root string }

func (f files) Get(name string) string {
	data, err := os.ReadFile(filepath.Join(f.root, name))
	check(err)
	return string(data)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	chart := os.Args[1]
	context := map[string]interface{}{}
	check(yaml.NewDecoder(os.Stdin).Decode(&context))
	context["Files"] = files{chart}
	all := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		data, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(data), "\n"), err
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		check(err)
		_, err = all.New(filepath.Base(path)).Parse(string(data))
		check(err)
	}
	rendered := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out bytes.Buffer
		check(all.ExecuteTemplate(&out, name, context))
		rendered[name] = out.String()
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}
