package trace

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kmirror/protocol"
)

const secret = "dOnTsHoW"

// fill puts something into every field of a message: one element in every list, configs with a name that is sensitive, and the
// secret wherever secrets are.
func fill(v reflect.Value, name string, configs bool) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name, configs)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[kmsg.Tags]() {
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && (f.Name != "Version" || i > 0) {
				fill(v.Field(i), f.Name, configs)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(secret))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name, configs)
	case reflect.Array:
		v.Index(0).SetUint(7)
	case reflect.String:
		switch {
		case name == "Name", name == "ConfigName":
			v.SetString("ssl.key.Password")
		case name == "Value":
			v.SetString(secret)
		case name == "ErrorMessage" && configs:
			v.SetString("Invalid value " + secret + " for configuration ssl.key.password")
		default:
			v.SetString("text-of-" + name)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(5)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(3)
	case reflect.Float64:
		v.SetFloat(1.5)
	}
}

// filled returns a message of each kind with every field set, and as it would be on the wire in a version.
func filled(key, version int16) (req kmsg.Request, resp kmsg.Response) {
	req, resp = kmsg.RequestForKey(key), kmsg.ResponseForKey(key)
	req.SetVersion(version)
	resp.SetVersion(version)
	fill(reflect.ValueOf(req).Elem(), "", configAPIs[key])
	fill(reflect.ValueOf(resp).Elem(), "", configAPIs[key])
	return req, resp
}

// TestEveryVersionOfEveryAPI sends filled messages of all versions through a stream. Nothing may be undecoded, and no secret
// shown, in any format (JSON has all that the others have), with payloads too.
func TestEveryVersionOfEveryAPI(t *testing.T) {
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		top := kmsg.RequestForKey(key)
		if top == nil {
			continue
		}
		for version := range top.MaxVersion() + 1 {
			checkFilled(t, key, version, JSON)
			if version == top.MaxVersion() {
				checkFilled(t, key, version, Line)
				checkFilled(t, key, version, Pretty)
			}
		}
	}
}

func checkFilled(t *testing.T, key, version int16, format Format) {
	t.Helper()
	req, resp := filled(key, version)
	p := newPeer(t, 0)
	p.r.Format = format
	id := "test"
	header := protocol.RequestHeader{Key: key, Version: version, CorrelationID: 9, ClientID: &id}
	if key == keyControlledShutdown && version == 0 {
		header.ClientID = nil
	}
	p.feed(ToServer, sized(req.AppendTo(protocol.AppendRequestHeader(nil, header))))
	p.feed(ToClient, answer(9, resp, version))
	text := p.out.String()
	if strings.Contains(text, "not decoded") || strings.Count(text, apiName(key)) < 2 {
		t.Errorf("key %d v%d: %s", key, version, text)
	}
	if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
		t.Errorf("key %d v%d as %s shows a secret: %s", key, version, format, text)
	}
	if format == JSON {
		for line := range strings.Lines(text) {
			if !json.Valid([]byte(line)) {
				t.Errorf("key %d v%d: not JSON: %s", key, version, line)
			}
		}
	}
	p.out.Reset()
}

const keyControlledShutdown = 7

// TestRenderHasAllFields holds Render against the schema: with every field set each name must be there.
func TestRenderHasAllFields(t *testing.T) {
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		req, resp := filled(key, kmsg.RequestForKey(key).MaxVersion())
		for _, m := range []any{req, resp} {
			shown := Render(m)
			if missing := missingFields(reflect.ValueOf(m).Elem(), shown); len(missing) > 0 {
				t.Errorf("%T: %v are not shown", m, missing)
			}
		}
	}
}

func missingFields(v reflect.Value, o Object) (missing []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || f.Name == "Version" && i == 0 || f.Type == reflect.TypeFor[kmsg.Tags]() ||
			same(f.Name, v.Field(i), defaultsOf(v.Type()).Field(i)) {
			continue
		}
		at := -1
		for j := range o {
			if o[j].Name == f.Name {
				at = j
			}
		}
		if at < 0 {
			missing = append(missing, f.Name)
			continue
		}
		value := o[at].Value
		if list, ok := value.([]any); ok && len(list) > 0 {
			value = list[0]
		}
		if sub, ok := value.(Object); ok {
			inner := v.Field(i)
			for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer {
				if inner.Kind() == reflect.Slice {
					inner = inner.Index(0)
				} else {
					inner = inner.Elem()
				}
			}
			for _, m := range missingFields(inner, sub) {
				missing = append(missing, f.Name+"."+m)
			}
		}
	}
	return missing
}

// TestSecretsThatHaveNames is explicit about what issue 6 names, so that a change of the rule is noticed.
func TestSecretsThatHaveNames(t *testing.T) {
	value := secret
	scram := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	scram.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{
		{Name: "alice", Salt: []byte(secret), SaltedPassword: []byte(secret)}}
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	for _, name := range []string{"listener.name.x.scram-sha-256.sasl.jaas.config", "ssl.keystore.password", "my.Secret",
		"api-token", "ssl.keystore.key"} {
		alter.Resources = append(alter.Resources, kmsg.IncrementalAlterConfigsRequestResource{ResourceName: "1",
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Value: &value}}})
	}
	described := kmsg.NewPtrDescribeConfigsResponse()
	described.Resources = []kmsg.DescribeConfigsResponseResource{{Configs: []kmsg.DescribeConfigsResponseResourceConfig{
		{Name: "harmless", Value: &value, IsSensitive: true}}}}
	created := kmsg.NewPtrCreateDelegationTokenResponse()
	created.HMAC = []byte(secret)
	for _, m := range []any{scram, alter, described, created, token("\x00alice\x00" + secret)} {
		if text := string(appendJSON(nil, Render(m))); strings.Contains(text, secret) || !strings.Contains(text, string(hidden)) {
			t.Errorf("%T: %s", m, text)
		}
	}
	harmless := kmsg.NewPtrIncrementalAlterConfigsRequest()
	harmless.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: &value}}}}
	if text := string(appendJSON(nil, Render(harmless))); !strings.Contains(text, secret) {
		t.Errorf("a plain config is hidden: %s", text)
	}
}

func TestHugeMessagesAreCut(t *testing.T) {
	resp := kmsg.NewPtrMetadataResponse()
	resp.Topics = make([]kmsg.MetadataResponseTopic, maxTopics+10_000)
	for i := range resp.Topics {
		name := fmt.Sprint("t", i)
		resp.Topics[i] = kmsg.MetadataResponseTopic{Topic: &name, ErrorCode: 3}
	}
	e := &Event{Message: &Message{Kind: Response, At: time.Unix(0, 0)}, API: "Metadata", Body: resp}
	NewDecoder(DecoderConfig{}).collect(e)
	if len(e.Topics) != maxTopics || len(e.Errors) != maxErrors || e.ErrorCount != len(resp.Topics) {
		t.Errorf("%d topics, %d of %d errors", len(e.Topics), len(e.Errors), e.ErrorCount)
	}
	acls := kmsg.NewPtrCreateACLsResponse()
	acls.Results = make([]kmsg.CreateACLsResponseResult, maxTopics+10_000)
	for i := range acls.Results {
		acls.Results[i].ErrorCode = 31
	}
	unnamed := &Event{Message: &Message{Kind: Response}, Body: acls}
	NewDecoder(DecoderConfig{}).collect(unnamed)
	if len(unnamed.Errors) != maxErrors || unnamed.ErrorCount != len(acls.Results) {
		t.Errorf("%d of %d errors without a name", len(unnamed.Errors), unnamed.ErrorCount)
	}
	if o := Render(resp); o[len(o)-1].Name != "truncated" {
		t.Error("a message beyond the limit is not said to be cut")
	}
	if line := appendLine(nil, e); len(line) > 2000 {
		t.Errorf("a line of %d bytes", len(line))
	}
}
