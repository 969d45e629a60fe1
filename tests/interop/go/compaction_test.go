package interop

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

const (
	compactedLog  = "a=1 b=1 a=2 =keyless c=1 d=1 c= e=1 b= a=3"
	compactedLeft = "d=1 e=1 a=3"
)

// sendPairs publishes "key=value" for each word, all before the first receipt is awaited.
func sendPairs(t *testing.T, producer pulsar.Producer, words string) []pulsar.MessageID {
	t.Helper()
	pairs := strings.Fields(words)
	ids := make([]pulsar.MessageID, len(pairs))
	failures := make(chan error, len(pairs))
	for n, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(value)}
		producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			ids[n] = id
			failures <- err
		})
	}
	must(t, producer.Flush())
	for range pairs {
		must(t, <-failures)
	}
	return ids
}

func compact(t *testing.T, topic string) {
	t.Helper()
	admin(t, http.MethodPut, topic, "/compaction", "")
	eventually(t, "compaction", func() bool {
		return strings.Contains(admin(t, http.MethodGet, topic, "/compaction", ""), "SUCCESS")
	})
}

// pairsOf leaves out messages without key and value: this client shows those that were taken out of a batch.
func pairsOf(messages []pulsar.Message) string {
	words := make([]string, 0, len(messages))
	for _, message := range messages {
		if word := message.Key() + "=" + string(message.Payload()); word != "=" {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// takePairs receives so many messages that pairsOf shows.
func takePairs(t *testing.T, consumer receiver, count int) (string, pulsar.Message) {
	t.Helper()
	var messages []pulsar.Message
	for len(strings.Fields(pairsOf(messages))) < count {
		messages = append(messages, next(t, consumer))
	}
	return pairsOf(messages), messages[len(messages)-1]
}

// restPairs reads while the server says that there is something.
func restPairs(t *testing.T, reader pulsar.Reader) string {
	t.Helper()
	var messages []pulsar.Message
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := reader.Next(ctx)
		cancel()
		must(t, err)
		messages = append(messages, message)
	}
	return pairsOf(messages)
}

func compactedReader(t *testing.T, client pulsar.Client, topic string) pulsar.Reader {
	t.Helper()
	return newReader(t, client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
	})
}

func batched(topic string, batching bool) pulsar.ProducerOptions {
	return pulsar.ProducerOptions{
		Topic: topic, DisableBatching: !batching, BatchingMaxMessages: 4, BatchingMaxPublishDelay: time.Second,
	}
}

func TestCompactedCodecsAndBatches(t *testing.T) {
	client := newClient(t)
	for _, codec := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY} {
		for _, batching := range []bool{true, false} {
			what, topic := fmt.Sprintf("codec %v, batching %v", codec, batching), newTopic()
			options := batched(topic, batching)
			options.CompressionType = codec
			producer := newProducer(t, client, options)
			sendPairs(t, producer, compactedLog)
			compact(t, topic)
			sendPairs(t, producer, "a=4 f=1")
			equal(t, compactedLeft+" a=4 f=1", restPairs(t, compactedReader(t, client, topic)), what)
			compact(t, topic)
			equal(t, "d=1 e=1 a=4 f=1", restPairs(t, compactedReader(t, client, topic)), "again, "+what)
		}
	}
}

func TestCompactedLastMessageID(t *testing.T) {
	client := newClient(t)
	for _, batching := range []bool{true, false} {
		what, topic := fmt.Sprintf("batching %v", batching), newTopic()
		producer := newProducer(t, client, batched(topic, batching))
		ids := sendPairs(t, producer, "a=1 b=1 c=1 c=")
		compact(t, topic)
		reader := compactedReader(t, client, topic)
		last, err := reader.GetLastMessageID()
		must(t, err)
		equal(t, ids[1].EntryID(), last.EntryID(), "entry of the last message, "+what)
		equal(t, ids[1].BatchIdx(), last.BatchIdx(), "its index, "+what)
		equal(t, "a=1 b=1", restPairs(t, reader), what)
		sendPairs(t, producer, "a= b=")
		compact(t, topic)
		empty := compactedReader(t, client, topic)
		equal(t, "", restPairs(t, empty), "every key is removed, "+what)
		sendPairs(t, producer, "a=2")
		equal(t, "a=2", restPairs(t, empty), "what came later, "+what)
	}
}

func TestCompactedSeeks(t *testing.T) {
	client, topic := newClient(t), newTopic()
	producer := newProducer(t, client, batched(topic, false))
	ids := sendPairs(t, producer, compactedLog)
	time.Sleep(20 * time.Millisecond)
	moment := time.Now()
	sendPairs(t, producer, "g=1 a=4")
	compact(t, topic)
	const all = "d=1 e=1 g=1 a=4"
	for n, after := range map[int]string{2: all, 5: "e=1 g=1 a=4"} {
		reader := compactedReader(t, client, topic)
		equal(t, all, restPairs(t, reader), "first pass")
		must(t, reader.Seek(ids[n]))
		equal(t, after, restPairs(t, reader), fmt.Sprintf("after message %d", n))
	}
	from := newReader(t, client, pulsar.ReaderOptions{
		Topic: topic, StartMessageID: ids[7], StartMessageIDInclusive: true, ReadCompacted: true,
	})
	equal(t, "e=1 g=1 a=4", restPairs(t, from), "from an id")
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Failover, ReadCompacted: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	equal(t, all, pairsOf(take(t, consumer, 4)), "a consumer's first pass")
	must(t, consumer.SeekByTime(moment))
	equal(t, "g=1 a=4", pairsOf(take(t, consumer, 2)), "from a time")
	nothing(t, consumer)
}

func TestCompactedConsumers(t *testing.T) {
	client, topic := newClient(t), newTopic()
	producer := newProducer(t, client, batched(topic, true))
	sendPairs(t, producer, compactedLog)
	compact(t, topic)
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Exclusive, ReadCompacted: true, AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	consumer, err := client.Subscribe(options)
	must(t, err)
	found, last := takePairs(t, consumer, 3)
	equal(t, compactedLeft, found, "all")
	nothing(t, consumer)
	must(t, consumer.AckCumulative(last))
	consumer.Close()
	sendPairs(t, producer, "z=1")
	equal(t, "z=1", pairsOf(take(t, newConsumer(t, client, options), 1)), "after what was acknowledged")
	options.SubscriptionName, options.Type = "shared", pulsar.Shared
	if _, err := client.Subscribe(options); err == nil {
		t.Fatal("a shared subscription may read the compacted view")
	}
}

// keyFiles makes a pair of RSA keys.
func keyFiles(t *testing.T) crypto.KeyReader {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	open, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	paths := make([]string, 0, 2)
	for name, block := range map[string]*pem.Block{
		"1": {Type: "PUBLIC KEY", Bytes: open},
		"2": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
	} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	return crypto.NewFileKeyReader(paths[0], paths[1])
}

func TestCompactedEncrypted(t *testing.T) {
	client, keys := newClient(t), keyFiles(t)
	// A batch is one message, and goes by the key of its entry, which is that of the first in it.
	for batching, left := range map[bool]string{false: compactedLeft, true: compactedLog} {
		topic := newTopic()
		options := batched(topic, batching)
		options.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"k"}}
		producer := newProducer(t, client, options)
		sendPairs(t, producer, compactedLog)
		sendPairs(t, producer, compactedLog)
		compact(t, topic)
		reader := newReader(t, client, pulsar.ReaderOptions{
			Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
			Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
		})
		equal(t, left, restPairs(t, reader), fmt.Sprintf("batching %v", batching))
	}
}

// Pulsar keeps the last chunk only, which is no message (docs/formats/compacted-ledger.md).
func TestCompactedChunks(t *testing.T) {
	client, topic := newClient(t), newTopic()
	options := batched(topic, false)
	options.EnableChunking, options.ChunkMaxMessageSize = true, 1000
	producer, large := newProducer(t, client, options), strings.Repeat("x", 2500)
	sendPairs(t, producer, "a=1"+large+" b=1 a=2"+large+" c=1"+large+" c=1")
	compact(t, topic)
	reader := compactedReader(t, client, topic)
	for _, expected := range []string{"b=1", "a=2" + large, "c=1"} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message, err := reader.Next(ctx)
		cancel()
		must(t, err)
		found := pairsOf([]pulsar.Message{message})
		if found == "c=1" {
			return
		}
		equal(t, expected, found, "a message of the view")
	}
}

func TestCompactedTableView(t *testing.T) {
	client, topic := newClient(t), newPartitionedTopic(t, 2)
	options := batched(topic, true)
	options.Schema = pulsar.NewBytesSchema(nil)
	producer := newProducer(t, client, options)
	expected := map[string]string{}
	for n := range 30 {
		key, value := fmt.Sprintf("k%d", n%10), fmt.Sprint(n)
		sendPairs(t, producer, key+"="+value)
		expected[key] = value
	}
	for partition := range 2 {
		compact(t, fmt.Sprintf("%s-partition-%d", topic, partition))
	}
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: typeOfBytes,
	})
	must(t, err)
	defer view.Close()
	actual := map[string]string{}
	for key, value := range view.Entries() {
		actual[key] = string(value.([]byte))
	}
	if !maps.Equal(expected, actual) {
		t.Fatalf("expected %v, got %v", expected, actual)
	}
	sendPairs(t, producer, "k0=new")
	eventually(t, "an update", func() bool { return string(view.Get("k0").([]byte)) == "new" })
}
