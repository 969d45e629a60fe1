// Program traffic produces to topics and consumes from them until it is told to stop, through whatever happens to
// their brokers. tests/interop/moving_cluster.py starts it and tells what its lines mean.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	patience = 2 * time.Minute
	pause    = 20 * time.Millisecond
)

// topic is one argument: NAME,WINDOW,BATCHED.
type topic struct {
	name    string
	window  int // messages under way at once
	batched bool
}

func main() {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], OperationTimeout: patience, Logger: log.DefaultNopLogger(),
	})
	check(err)
	stopping := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n') // or its end
		close(stopping)
	}()
	var all sync.WaitGroup
	for _, argument := range os.Args[2:] {
		each := parse(argument)
		all.Add(1)
		go func() {
			defer all.Done()
			each.run(client, stopping)
		}()
	}
	all.Wait()
	client.Close()
	say("end")
}

func parse(argument string) topic {
	parts := strings.Split(argument, ",")
	window, err := strconv.Atoi(parts[1])
	check(err)
	return topic{parts[0], window, parts[2] == "batched"}
}

func (t topic) run(client pulsar.Client, stopping <-chan struct{}) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: t.name, SubscriptionName: "traffic", Type: pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	sent := make(chan int, 1)
	go func() { sent <- t.produce(client, stopping) }()
	t.consume(consumer, sent)
	consumer.Close()
}

// produce sends 0, 1, 2, ... and returns how many, all of them acknowledged.
func (t topic) produce(client pulsar.Client, stopping <-chan struct{}) int {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: t.name, SendTimeout: patience, DisableBatching: !t.batched,
		BatchingMaxPublishDelay: 2 * pause,
	})
	check(err)
	defer producer.Close()
	room := make(chan struct{}, t.window)
	number := 0
	for {
		select {
		case <-stopping:
			for range t.window { // until nothing is under way
				room <- struct{}{}
			}
			say("sent %s %d", t.name, number)
			return number
		case room <- struct{}{}:
		}
		mine := number
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(mine))},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				check(err)
				say("acked %s %d", t.name, mine)
				<-room
			})
		number++
		time.Sleep(pause)
	}
}

// consume goes on until it has received all that was sent.
func (t topic) consume(consumer pulsar.Consumer, sent <-chan int) {
	next, all := 0, -1
	for all < 0 || next < all {
		select {
		case all = <-sent:
		case message := <-consumer.Chan():
			number, err := strconv.Atoi(string(message.Payload()))
			check(err)
			say("received %s %d", t.name, number)
			check(consumer.Ack(message))
			if number == next {
				next++
			}
		}
	}
}

var saying sync.Mutex

func say(format string, arguments ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Printf(format+"\n", arguments...)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
