package interop

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Of a batch, Go acknowledges all messages with the first one, so parts of batches aren't here.

// transactional is a topic with a producer, a consumer of every message and a client that begins transactions.
type transactional struct {
	client   pulsar.Client
	topic    string
	producer pulsar.Producer
	consumer pulsar.Consumer
}

func newTransactional(t *testing.T) transactional {
	t.Helper()
	options := clientOptions()
	options.EnableTransaction = true
	client, topic := newClientWith(t, options), newTopic()
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, SendTimeout: -1,
	})
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckWithResponse: true,
	})
	return transactional{client, topic, producer, consumer}
}

// sendsInTransactions skips a test on Pulsar, which delivers what transactions of this client aborted: the client names
// them in the command only, and Pulsar's readers look into the metadata.
func sendsInTransactions(t *testing.T) transactional {
	t.Helper()
	if version := adminPath(t, http.MethodGet, "/admin/v2/brokers/version", ""); !strings.HasPrefix(version, "0.") {
		t.Skip("Pulsar " + version + " delivers aborted messages of this client")
	}
	return newTransactional(t)
}

func (it transactional) begin(t *testing.T, duration time.Duration) pulsar.Transaction {
	t.Helper()
	transaction, err := it.client.NewTransaction(duration)
	must(t, err)
	return transaction
}

func (it transactional) send(t *testing.T, transaction pulsar.Transaction, text string) {
	t.Helper()
	_, err := it.producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(text), Transaction: transaction})
	must(t, err)
}

func (it transactional) backlogBecomesEmpty(t *testing.T) {
	t.Helper()
	eventually(t, "an empty backlog", func() bool {
		return strings.Contains(admin(t, http.MethodGet, it.topic, "/stats", ""), `"msgBacklog":0,`)
	})
}

func TestTransactionsOfMessages(t *testing.T) {
	it := sendsInTransactions(t)
	x, y, z := it.begin(t, time.Minute), it.begin(t, time.Minute), it.begin(t, time.Minute)
	it.send(t, nil, "before")
	it.send(t, x, "x0")
	it.send(t, nil, "plain")
	it.send(t, y, "y0")
	it.send(t, z, "z0")
	it.send(t, x, "x1")
	equal(t, "before", texts(take(t, it.consumer, 1)), "in front of the first one")
	must(t, y.Commit(context.Background()))
	must(t, z.Abort(context.Background()))
	nothing(t, it.consumer)
	must(t, x.Commit(context.Background()))
	equal(t, "x0 plain y0 x1", texts(take(t, it.consumer, 4)), "in the log's order, without the aborted one")
	if err := x.Abort(context.Background()); err == nil {
		t.Fatal("an abort behind the commit was accepted")
	}
	nothing(t, it.consumer)
}

func TestTransactionsOfAcknowledgements(t *testing.T) {
	it := newTransactional(t)
	send(t, it.producer, 0, 4)
	messages := take(t, it.consumer, 4)
	x, y, z := it.begin(t, time.Minute), it.begin(t, time.Minute), it.begin(t, time.Minute)
	must(t, it.consumer.AckWithTxn(messages[0], x))
	must(t, it.consumer.AckWithTxn(messages[1], x))
	must(t, it.consumer.AckWithTxn(messages[2], y))
	if err := it.consumer.AckWithTxn(messages[0], z); err == nil {
		t.Fatal("acknowledged in two transactions")
	}
	must(t, x.Commit(context.Background()))
	must(t, y.Abort(context.Background()))
	again := next(t, it.consumer)
	equal(t, "2", string(again.Payload()), "comes again")
	equal(t, uint32(1), again.RedeliveryCount(), "how often it came again")
	must(t, it.consumer.Ack(again))
	must(t, it.consumer.Ack(messages[3]))
	it.backlogBecomesEmpty(t)
}

func TestTransactionsTimeOut(t *testing.T) {
	it := sendsInTransactions(t)
	x := it.begin(t, 500*time.Millisecond)
	it.send(t, x, "x0")
	it.send(t, nil, "plain")
	equal(t, "plain", texts(take(t, it.consumer, 1)), "behind what timed out")
	if err := x.Commit(context.Background()); err == nil {
		t.Fatal("a commit behind the time-out was accepted")
	}
	nothing(t, it.consumer)
}

func TestTransactionsOutliveAnUnload(t *testing.T) {
	it := sendsInTransactions(t)
	send(t, it.producer, 0, 1)
	message := next(t, it.consumer)
	x, y := it.begin(t, time.Minute), it.begin(t, time.Minute)
	it.send(t, x, "x0")
	it.send(t, y, "y0")
	must(t, it.consumer.AckWithTxn(message, x))
	must(t, y.Abort(context.Background()))
	admin(t, http.MethodPut, it.topic, "/unload", "")
	it.send(t, x, "x1")
	it.send(t, nil, "plain")
	nothing(t, it.consumer)
	must(t, x.Commit(context.Background()))
	all := take(t, it.consumer, 3)
	equal(t, "x0 x1 plain", texts(all), "both parts, and what came behind")
	for _, each := range all {
		must(t, it.consumer.Ack(each))
	}
	it.backlogBecomesEmpty(t)
}

func TestTransactionsFromOneTopicToAnother(t *testing.T) {
	it := sendsInTransactions(t)
	to := newTopic()
	producer := newProducer(t, it.client, pulsar.ProducerOptions{Topic: to, DisableBatching: true, SendTimeout: -1})
	result := newConsumer(t, it.client, pulsar.ConsumerOptions{Topic: to})
	send(t, it.producer, 0, 20)
	kept := ""
	for done := 0; done < 20; {
		message := next(t, it.consumer)
		n, err := strconv.Atoi(string(message.Payload()))
		must(t, err)
		x := it.begin(t, time.Minute)
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: message.Payload(), Transaction: x})
		must(t, err)
		must(t, it.consumer.AckWithTxn(message, x))
		if n%3 == 0 && message.RedeliveryCount() == 0 {
			must(t, x.Abort(context.Background()))
			continue
		}
		must(t, x.Commit(context.Background()))
		kept += " " + string(message.Payload())
		done++
	}
	equal(t, kept[1:], texts(take(t, result, 20)), "each once, in the order of the commits")
	nothing(t, result)
	it.backlogBecomesEmpty(t)
}
