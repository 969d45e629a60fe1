// Does what random histories of transactions want; tests/interop/transactions_by_clients.py starts it and tells what its lines mean.
package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"magnetar/interop/lines"
)

const patience = 30 * time.Second

var types = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive, "Failover": pulsar.Failover, "Shared": pulsar.Shared, "Key_Shared": pulsar.KeyShared,
}

type subscribed struct {
	consumer pulsar.Consumer
	messages map[string]pulsar.Message
}

type program struct {
	client       pulsar.Client
	transactions map[string]pulsar.Transaction
	producers    map[string]pulsar.Producer
	consumers    map[string]subscribed
}

// producer is another one for each transaction: a batch of none would go into that of the batch in front of it.
func (p *program) producer(topic, transaction, kind string) pulsar.Producer {
	name := strings.Join([]string{topic, transaction, kind}, " ")
	if p.producers[name] == nil {
		p.producers[name] = lines.Must(p.client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: kind != "batch", BatchingMaxMessages: 1000, BatchingMaxPublishDelay: time.Minute,
			EnableChunking: kind == "chunks", ChunkMaxMessageSize: 100, SendTimeout: -1,
		}))
	}
	return p.producers[name]
}

func (p *program) begin(name, millis string) []string {
	duration := time.Duration(lines.Must(strconv.Atoi(millis))) * time.Millisecond
	p.transactions[name] = lines.Must(p.client.NewTransaction(duration))
	id := p.transactions[name].GetTxnID()
	return []string{fmt.Sprint(id.MostSigBits), fmt.Sprint(id.LeastSigBits)}
}

func (p *program) send(topic, transaction, kind string, pairs []string) []string {
	producer := p.producer(topic, transaction, kind)
	ids, failures := make([]string, len(pairs)), make(chan error, len(pairs))
	for n, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		message := &pulsar.ProducerMessage{Key: key, Payload: []byte(value)}
		if transaction != "-" {
			message.Transaction = p.transactions[transaction]
		}
		producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err == nil {
				ids[n] = hex.EncodeToString(id.Serialize())
			}
			failures <- err
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lines.Check(producer.FlushWithCtx(ctx))
	for range pairs {
		select {
		case err := <-failures:
			lines.Check(err)
		case <-ctx.Done():
			panic("no receipt")
		}
	}
	return ids
}

func (p *program) leave(name string) {
	if it, ok := p.consumers[name]; ok {
		it.consumer.Close()
		delete(p.consumers, name)
	}
}

// look is what a consumer that has just come gets: so many messages, and those that come for a while behind them.
func (p *program) look(name, topic, kind, count, millis string) []string {
	p.leave(name)
	it := subscribed{messages: map[string]pulsar.Message{}, consumer: lines.Must(p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name, Type: types[kind], AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckGroupingOptions:          &pulsar.AckGroupingOptions{MaxSize: 1},
	}))}
	p.consumers[name] = it
	expected, behind := lines.Must(strconv.Atoi(count)), time.Duration(lines.Must(strconv.Atoi(millis)))*time.Millisecond
	found := []string{}
	for {
		wait := patience
		if len(found) >= expected {
			wait = behind
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		message, err := it.consumer.Receive(ctx)
		cancel()
		if err != nil {
			return found
		}
		value := strings.TrimRight(string(message.Payload()), "-")
		it.messages[value] = message
		found = append(found, fmt.Sprintf("%s=%s=%x", message.Key(), value, message.ID().Serialize()))
	}
}

func (p *program) acknowledge(name, transaction, value string) {
	it := p.consumers[name]
	if transaction == "-" {
		lines.Check(it.consumer.Ack(it.messages[value]))
	} else {
		lines.Check(it.consumer.AckWithTxn(it.messages[value], p.transactions[transaction]))
	}
}

func (p *program) do(words []string) (found []string) {
	switch words[0] {
	case "begin":
		found = p.begin(words[1], words[2])
	case "send":
		found = p.send(words[1], words[2], words[3], words[4:])
	case "look":
		found = p.look(words[1], words[2], words[3], words[4], words[5])
	case "ack":
		p.acknowledge(words[1], words[2], words[3])
	case "upto":
		lines.Check(p.consumers[words[1]].consumer.AckCumulative(p.consumers[words[1]].messages[words[2]]))
	case "commit":
		lines.Check(p.transactions[words[1]].Commit(context.Background()))
	case "abort":
		lines.Check(p.transactions[words[1]].Abort(context.Background()))
	case "end": // of a history
		for name := range p.consumers {
			p.leave(name)
		}
		for name, producer := range p.producers {
			producer.Close()
			delete(p.producers, name)
		}
	default:
		panic("unknown: " + words[0])
	}
	return found
}

func main() {
	client := lines.Must(pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Logger: log.DefaultNopLogger(), EnableTransaction: true, OperationTimeout: patience,
	}))
	p := &program{client, map[string]pulsar.Transaction{}, map[string]pulsar.Producer{}, map[string]subscribed{}}
	lines.Serve(p.do)
}
