// Sends to compacted topics and tells what is seen of them; tests/interop/compacted_by_clients.py starts it and tells what its lines mean.
package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"magnetar/interop/lines"
)

const patience = 30 * time.Second

var codecs = map[string]pulsar.CompressionType{
	"NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
}

type program struct {
	client pulsar.Client
	keys   crypto.KeyReader
}

// idOf takes ids of other clients, too: this one wants a partition.
func idOf(text string) pulsar.MessageID {
	id := lines.Must(pulsar.DeserializeMessageID(lines.Must(hex.DecodeString(text))))
	return pulsar.NewMessageID(id.LedgerID(), id.EntryID(), id.BatchIdx(), 0)
}

func same(a, b pulsar.MessageID) bool {
	return a.LedgerID() == b.LedgerID() && a.EntryID() == b.EntryID() && max(a.BatchIdx(), 0) == max(b.BatchIdx(), 0)
}

func told(messages []pulsar.Message) []string {
	words := make([]string, 0, len(messages))
	for _, message := range messages {
		words = append(words, fmt.Sprintf("%s=%s=%x", message.Key(), message.Payload(), message.ID().Serialize()))
	}
	return words
}

func (p *program) send(topic, codec, kind string, pairs []string) []string {
	options := pulsar.ProducerOptions{
		Topic: topic, CompressionType: codecs[codec], DisableBatching: !strings.HasSuffix(kind, "batch"),
		BatchingMaxMessages: 1000, BatchingMaxPublishDelay: time.Minute,
	}
	if kind == "chunks" {
		options.EnableChunking, options.ChunkMaxMessageSize = true, 1000
	}
	if strings.HasPrefix(kind, "sealed") {
		options.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: p.keys, Keys: []string{"k"}}
	}
	producer := lines.Must(p.client.CreateProducer(options))
	defer producer.Close()
	ids, failures := make([]string, len(pairs)), make(chan error, len(pairs))
	for n, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(value)}
		producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err == nil {
				ids[n] = hex.EncodeToString(id.Serialize())
			}
			failures <- err
		})
	}
	lines.Check(producer.Flush())
	for range pairs {
		lines.Check(<-failures)
	}
	return ids
}

// view is what a reader gets from the start, or after a seek.
func (p *program) view(topic string, seek []string) []string {
	reader := lines.Must(p.client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
		Decryption: &pulsar.MessageDecryptionInfo{KeyReader: p.keys},
	}))
	defer reader.Close()
	if len(seek) > 0 {
		lines.Check(reader.Seek(idOf(seek[0])))
		for until := time.Now().Add(patience); !reader.HasNext(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) { // it says so for a moment, but something always follows
				panic("nothing after a seek")
			}
		}
	}
	var messages []pulsar.Message
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		messages = append(messages, lines.Must(reader.Next(ctx)))
		cancel()
	}
	return told(messages)
}

func (p *program) last(topic string) []string {
	reader := lines.Must(p.client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
		Decryption: &pulsar.MessageDecryptionInfo{KeyReader: p.keys},
	}))
	defer reader.Close()
	return []string{hex.EncodeToString(lines.Must(reader.GetLastMessageID()).Serialize())}
}

// consume is what a durable subscription gets up to a message. It may be set to a time, and acknowledges up to a message.
func (p *program) consume(topic, name, until, millis, acked string) []string {
	consumer := lines.Must(p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name, Type: pulsar.Failover, ReadCompacted: true, AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Decryption:                  &pulsar.MessageDecryptionInfo{KeyReader: p.keys},
	}))
	defer consumer.Close()
	if at := lines.Must(strconv.ParseInt(millis, 10, 64)); at > 0 {
		lines.Check(consumer.SeekByTime(time.UnixMilli(at)))
	}
	end := idOf(until)
	var messages []pulsar.Message
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		message := lines.Must(consumer.Receive(ctx))
		cancel()
		messages = append(messages, message)
		if acked != "-" && same(idOf(acked), message.ID()) {
			lines.Check(consumer.AckCumulative(message))
		}
		if same(end, message.ID()) {
			return told(messages)
		}
	}
}

func (p *program) do(words []string) (found []string) {
	switch words[0] {
	case "send":
		found = p.send(words[1], words[2], words[3], words[4:])
	case "view":
		found = p.view(words[1], words[2:])
	case "last":
		found = p.last(words[1])
	case "consume":
		found = p.consume(words[1], words[2], words[3], words[4], words[5])
	default:
		panic("unknown: " + words[0])
	}
	return found
}

func main() {
	client := lines.Must(pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1], Logger: log.DefaultNopLogger()}))
	keys := crypto.NewFileKeyReader(filepath.Join(os.Args[2], "public.pem"), filepath.Join(os.Args[2], "private.pem"))
	p := &program{client, keys}
	lines.Serve(p.do)
}
