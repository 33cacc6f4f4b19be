// Makes every call of a generated client, found by its name, and prints what it answers.
// usage: call_all ADDRESS CALLS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"

	"example.com/heed"
)

type call struct {
	Operation, Tag, Path string
	Arguments            map[string]any
	Body                 json.RawMessage
}

// camel is a name as the generator writes it.
func camel(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == '_' || r == ' ' })
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

func main() {
	text, err := os.ReadFile(os.Args[2])
	var calls []call
	if err == nil {
		err = json.Unmarshal(text, &calls)
	}
	if err != nil {
		panic(err)
	}
	configuration := heed.NewConfiguration()
	configuration.Servers = heed.ServerConfigurations{{URL: os.Args[1]}}
	client := heed.NewAPIClient(configuration)
	memory := ""
	for _, call := range calls {
		api := reflect.ValueOf(client).Elem().FieldByName(camel(call.Tag) + "API")
		arguments := []reflect.Value{reflect.ValueOf(context.Background())}
		for _, part := range strings.Split(call.Path, "/") { // in the order of the path
			switch value := call.Arguments[strings.Trim(part, "{}")].(type) {
			case string:
				arguments = append(arguments, reflect.ValueOf(strings.Replace(value, "{memory}", memory, 1)))
			case float64:
				arguments = append(arguments, reflect.ValueOf(int32(value)))
			}
		}
		request := api.MethodByName(camel(call.Operation)).Call(arguments)[0]
		for i := 0; string(call.Body) != "null" && i < request.NumMethod(); i++ {
			method := request.Method(i)
			if method.Type().NumIn() == 1 && method.Type().In(0).Kind() == reflect.Struct {
				body := reflect.New(method.Type().In(0))
				if err := json.Unmarshal(call.Body, body.Interface()); err != nil {
					panic(fmt.Sprint(call.Operation, ": ", err))
				}
				request = method.Call([]reflect.Value{body.Elem()})[0]
				break
			}
		}
		results := request.MethodByName("Execute").Call(nil)
		if err := results[len(results)-1]; !err.IsNil() {
			panic(fmt.Sprint(call.Operation, ": ", err))
		}
		response := results[len(results)-2].Interface().(*http.Response)
		if response.StatusCode == http.StatusCreated {
			memory = results[0].Interface().(*heed.MemoryDescription).Id
		}
		line, _ := json.Marshal([]any{call.Operation, response.StatusCode})
		fmt.Println(string(line))
	}
}
