package interop

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var typeOfBytes = reflect.TypeFor[[]byte]()

func newReader(t *testing.T, client pulsar.Client, options pulsar.ReaderOptions) pulsar.Reader {
	t.Helper()
	reader, err := client.CreateReader(options)
	must(t, err)
	t.Cleanup(reader.Close)
	return reader
}

// rest reads while the server says that there is something.
func rest(t *testing.T, reader pulsar.Reader) string {
	t.Helper()
	var messages []pulsar.Message
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := reader.Next(ctx)
		cancel()
		must(t, err)
		messages = append(messages, message)
	}
	return texts(messages)
}

func TestReader(t *testing.T) {
	for _, single := range []bool{true, false} {
		client, topic := newClient(t), newTopic()
		newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic}) // keeps the messages
		producer := newProducer(t, client, pulsar.ProducerOptions{
			Topic: topic, DisableBatching: single, BatchingMaxPublishDelay: time.Second,
		})
		reader := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
		equal(t, "", rest(t, reader), "an empty topic")
		ids := send(t, producer, 0, 10)
		equal(t, numbers(0, 10), rest(t, reader), "all")
		after := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: ids[4]})
		equal(t, numbers(5, 10), rest(t, after), "after an id")
		from := newReader(t, client, pulsar.ReaderOptions{
			Topic: topic, StartMessageID: ids[4], StartMessageIDInclusive: true,
		})
		equal(t, numbers(4, 10), rest(t, from), "from an id")
		copied, err := pulsar.DeserializeMessageID(ids[9].Serialize())
		must(t, err)
		last := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: copied})
		equal(t, "", rest(t, last), "after the last")
		latest := newReader(t, client, pulsar.ReaderOptions{
			Topic: topic, StartMessageID: pulsar.LatestMessageID(), StartMessageIDInclusive: true,
		})
		equal(t, "9", rest(t, latest), "the last one, included")
	}
}

func TestReaderSeeks(t *testing.T) {
	client, topic := newClient(t), newTopic()
	newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic}) // keeps the messages
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := send(t, producer, 0, 10)
	// One reader for each way: after a seek by id this client drops what a seek by time brings
	// until it has asked for the last message, and the messages may be faster.
	byID := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	equal(t, numbers(0, 10), rest(t, byID), "first pass")
	must(t, byID.Seek(ids[5]))
	equal(t, numbers(6, 10), rest(t, byID), "after an id")
	byTime := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	equal(t, numbers(0, 10), rest(t, byTime), "first pass")
	must(t, byTime.SeekByTime(time.Now().Add(-time.Hour)))
	equal(t, numbers(0, 10), rest(t, byTime), "from an hour ago")
}

func TestReaderOfPartitions(t *testing.T) {
	client, topic := newClient(t), newPartitionedTopic(t, 3)
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	reader := newReader(t, client, pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	send(t, producer, 0, 12)
	count := 0
	for reader.HasNext() {
		_, err := reader.Next(context.Background())
		must(t, err)
		count++
	}
	equal(t, 12, count, "messages of all partitions")
}

func TestTableView(t *testing.T) {
	client, topic := newClient(t), newPartitionedTopic(t, 2)
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewBytesSchema(nil)})
	put := func(key, value string) {
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Key: key, Value: []byte(value)})
		must(t, err)
	}
	put("a", "1")
	put("b", "1")
	put("a", "2")
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: typeOfBytes,
	})
	must(t, err)
	t.Cleanup(view.Close)
	value := func(key string) string {
		bytes, _ := view.Get(key).([]byte)
		return string(bytes)
	}
	equal(t, 2, view.Size(), "keys")
	equal(t, "2", value("a"), "latest value")
	put("b", "3")
	eventually(t, "an update", func() bool { return value("b") == "3" })
}
