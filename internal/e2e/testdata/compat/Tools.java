import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs Kafka's command line tools one after the other in one JVM, since the start of a JVM takes longer than what most of them do.
 *
 * Each line of standard input is a JSON object: the tool's class, its args, its stdin. Each is answered by a line with its exit code
 * and what it wrote to standard output and error.
 */
public class Tools {
    /** What a tool's exit becomes. */
    static final class Exited extends Error {
    }

    /** Standard output and error, of which some tools keep the first they see. */
    static final class Sink extends OutputStream {
        private ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int b) {
            bytes.write(b);
        }

        @Override
        public synchronized void write(byte[] b, int offset, int length) {
            bytes.write(b, offset, length);
        }

        synchronized String take() {
            String text = bytes.toString(StandardCharsets.UTF_8);
            bytes = new ByteArrayOutputStream();
            return text;
        }
    }

    private static Integer code; // of the first exit that a tool asked for
    private static final List<Runnable> hooks = new ArrayList<>(); // what it does at its end, such as to send what it has buffered

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Sink out = new Sink(), err = new Sink();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        trapExits();
        ObjectMapper json = new ObjectMapper();
        for (String line; (line = jobs.readLine()) != null; ) {
            JsonNode job = json.readTree(line);
            List<String> args = new ArrayList<>();
            job.get("args").forEach(a -> args.add(a.asText()));
            System.setIn(new ByteArrayInputStream(job.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            run(job.get("class").asText(), args.toArray(new String[0]));
            System.out.flush();
            answers.println(json.writeValueAsString(Map.of("code", code, "out", out.take(), "err", err.take())));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String tool, String[] args) throws Exception {
        code = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (code == null) {
                e.getCause().printStackTrace();
                code = 1;
            }
        }
        if (code == null) code = 0;
        for (Runnable hook : hooks) hook.run();
        hooks.clear();
    }

    /** Has Kafka's way to end the process, whose package is not the same in all versions, end the tool only. */
    private static void trapExits() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        } catch (ClassNotFoundException e) {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object trap = Proxy.newProxyInstance(Tools.class.getClassLoader(), new Class<?>[] {procedure}, (proxy, method, args) -> {
            if (code == null) code = (Integer) args[0];
            throw new Exited();
        });
        exit.getMethod("setExitProcedure", procedure).invoke(null, trap);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, trap);
        Class<?> adder = Class.forName(exit.getName() + "$ShutdownHookAdder");
        exit.getMethod("setShutdownHookAdder", adder).invoke(null,
            Proxy.newProxyInstance(Tools.class.getClassLoader(), new Class<?>[] {adder}, (proxy, method, args) -> {
                hooks.add((Runnable) args[1]);
                return null;
            }));
    }

    /**
     * Reads a topic as a group and writes what it read to another, with offsets, in transactions: the first one aborts, the second
     * does the same again and commits.
     *
     * Arguments: bootstrap servers, properties file, topic to read, topic to write, number of records.
     */
    public static final class Transactions {
        public static void main(String[] args) throws Exception {
            Properties p = new Properties();
            try (FileInputStream in = new FileInputStream(args[1])) {
                p.load(in);
            }
            p.put("bootstrap.servers", args[0]);
            Properties c = (Properties) p.clone(), w = (Properties) p.clone();
            c.put("group.id", args[3] + "-readers");
            c.put("auto.offset.reset", "earliest");
            c.put("enable.auto.commit", "false");
            w.put("transactional.id", args[3] + "-writer");
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(c, new StringDeserializer(), new StringDeserializer());
                 KafkaProducer<String, String> producer = new KafkaProducer<>(w, new StringSerializer(), new StringSerializer())) {
                consumer.subscribe(List.of(args[2]));
                List<ConsumerRecord<String, String>> read = new ArrayList<>();
                while (read.size() < Integer.parseInt(args[4])) consumer.poll(Duration.ofSeconds(1)).forEach(read::add);
                producer.initTransactions();
                for (String end : List.of("aborted", "committed")) {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (ConsumerRecord<String, String> r : read) {
                        producer.send(new ProducerRecord<>(args[3], r.key(), end));
                        offsets.merge(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1),
                            (a, b) -> a.offset() > b.offset() ? a : b);
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    producer.flush();
                    if (end.equals("aborted")) producer.abortTransaction(); else producer.commitTransaction();
                    System.out.println(end + " " + read.size());
                }
            }
        }
    }
}
