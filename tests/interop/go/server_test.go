// Package interop shows what a server does through the official Go client.
package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

// How long anything that should happen may take.
const patience = 15 * time.Second

var topicCount atomic.Int64

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// newClient returns a client of the server under test, closed with the test.
func newClient(t *testing.T) pulsar.Client {
	t.Helper()
	return newClientWith(t, clientOptions())
}

func clientOptions() pulsar.ClientOptions {
	options := pulsar.ClientOptions{URL: setting("CLIENTS_URL", setting("SERVICE_URL", "pulsar://localhost:6650"))}
	if folder := authFolder(); folder != "" {
		options.Authentication = pulsar.NewAuthenticationTokenFromFile(folder + "/admin.token")
		options.TLSTrustCertsFilePath = folder + "/authority.pem"
		options.TLSValidateHostname = true
	}
	return options
}

func newClientWith(t *testing.T, options pulsar.ClientOptions) pulsar.Client {
	t.Helper()
	options.Logger = log.DefaultNopLogger()
	client, err := pulsar.NewClient(options)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// authFolder tells what a server that trusts nobody trusts (tests/interop/auth_material.py); "" is any other server.
func authFolder() string {
	return os.Getenv("AUTH_FOLDER")
}

// newTopic names a topic that no other test and no other run uses.
func newTopic() string {
	return fmt.Sprintf("persistent://public/default/go-%d-%d", time.Now().UnixNano(), topicCount.Add(1))
}

// admin calls the admin API on a topic and returns the body of a successful answer.
func admin(t *testing.T, method, topic, suffix, body string) string {
	t.Helper()
	return adminPath(t, method, "/admin/v2/"+strings.Replace(topic, "://", "/", 1)+suffix, body)
}

func adminPath(t *testing.T, method, path, body string) string {
	t.Helper()
	url := setting("ADMIN_URL", "http://localhost:8080") + path
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	if folder := authFolder(); folder != "" {
		token, err := os.ReadFile(folder + "/admin.token")
		must(t, err)
		request.Header.Set("Authorization", "Bearer "+string(token))
	}
	answer, err := http.DefaultClient.Do(request)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s", method, url, answer.StatusCode, text)
	}
	return string(text)
}

func newPartitionedTopic(t *testing.T, partitions int) string {
	t.Helper()
	topic := newTopic()
	admin(t, http.MethodPut, topic, "/partitions", strconv.Itoa(partitions))
	return topic
}

func newProducer(t *testing.T, client pulsar.Client, options pulsar.ProducerOptions) pulsar.Producer {
	t.Helper()
	producer, err := client.CreateProducer(options)
	must(t, err)
	t.Cleanup(producer.Close)
	return producer
}

func newConsumer(t *testing.T, client pulsar.Client, options pulsar.ConsumerOptions) pulsar.Consumer {
	t.Helper()
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	consumer, err := client.Subscribe(options)
	must(t, err)
	t.Cleanup(consumer.Close)
	return consumer
}

// send publishes the numbers of a range as texts, all before the first receipt is awaited.
func send(t *testing.T, producer pulsar.Producer, first, end int) []pulsar.MessageID {
	t.Helper()
	type receipt struct {
		n   int
		id  pulsar.MessageID
		err error
	}
	receipts := make(chan receipt, end-first)
	for n := first; n < end; n++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(n))},
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { receipts <- receipt{n, id, err} })
	}
	must(t, producer.Flush())
	ids := make([]pulsar.MessageID, end-first)
	for range ids {
		each := <-receipts
		must(t, each.err)
		ids[each.n-first] = each.id
	}
	return ids
}

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

func next(t *testing.T, consumer receiver) pulsar.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := consumer.Receive(ctx)
	must(t, err)
	return message
}

func take(t *testing.T, consumer receiver, count int) []pulsar.Message {
	t.Helper()
	messages := make([]pulsar.Message, count)
	for n := range messages {
		messages[n] = next(t, consumer)
	}
	return messages
}

func nothing(t *testing.T, consumer receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if message, err := consumer.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("unexpected message %v, error %v", message, err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[V comparable](t *testing.T, expected, actual V, what string) {
	t.Helper()
	if expected != actual {
		t.Fatalf("%s: expected %v, got %v", what, expected, actual)
	}
}

// texts joins payloads: "0 1 2".
func texts(messages []pulsar.Message) string {
	parts := make([]string, len(messages))
	for n, message := range messages {
		parts[n] = string(message.Payload())
	}
	return strings.Join(parts, " ")
}

// numbers is what texts gives for the messages of send.
func numbers(first, end int) string {
	parts := make([]string, 0, end-first)
	for n := first; n < end; n++ {
		parts = append(parts, strconv.Itoa(n))
	}
	return strings.Join(parts, " ")
}
