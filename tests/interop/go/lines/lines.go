// Package lines is what programs share that a test tells by lines what to do.
package lines

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// Check panics for an error: Serve answers by it.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns the value, or panics for the error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Serve answers each line of standard input by one: "ok" and the words that do returns, or "error" and what it has panicked with.
func Serve(do func(words []string) []string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		fmt.Println(answer(do, strings.Fields(in.Text())))
	}
}

func answer(do func(words []string) []string, words []string) (answer string) {
	defer func() {
		if failure := recover(); failure != nil {
			answer = strings.ReplaceAll(fmt.Sprint("error ", failure), "\n", " ")
		}
	}()
	return strings.Join(append([]string{"ok"}, do(words)...), " ")
}
